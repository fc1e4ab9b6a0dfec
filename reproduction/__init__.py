"""What did the papers claim, and what do we find?"""
