"""`python -m launch_scripts.supervise -- COMMAND`: keeps a run going over the ends of its launcher."""
