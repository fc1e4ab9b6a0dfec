"""Text and pictures of topologies, plans and answers, and the answers that only people need."""
