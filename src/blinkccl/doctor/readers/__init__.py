"""What does a file say? One file per format, each known by its content."""
