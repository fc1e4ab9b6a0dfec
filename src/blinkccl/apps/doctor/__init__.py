"""What is wrong? What files and this machine say (evidence), what follows from it (findings), and one line to try."""
