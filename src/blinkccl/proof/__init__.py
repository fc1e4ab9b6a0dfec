"""Is a plan what it says it is? The independent checker, and the verifier beside it."""
