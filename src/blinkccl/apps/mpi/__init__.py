"""What Blink needs to run under an unchanged MPI program: the binding to its MPI library, compiled at first use."""
