"""placeholder until written: see certificate_for"""
