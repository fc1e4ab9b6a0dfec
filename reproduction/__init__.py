"""The claims of the papers, and our numbers for them."""
