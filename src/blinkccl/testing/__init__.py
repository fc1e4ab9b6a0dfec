"""How do others prove theirs? Random right forests and programs, faults to plant, engines and the oracle."""
