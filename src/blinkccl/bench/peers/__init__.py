"""Which other libraries can be measured in the same run, and how are they started fairly?"""
