"""Other libraries that can be measured in the same run, with settings for a fair comparison."""
