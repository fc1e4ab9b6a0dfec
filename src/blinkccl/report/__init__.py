"""What do people look at? Plain functions that turn topologies and plans into text and pictures."""
