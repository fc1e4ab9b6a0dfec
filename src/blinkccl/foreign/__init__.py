"""What does a plan of another runtime compute, and is it right?"""
