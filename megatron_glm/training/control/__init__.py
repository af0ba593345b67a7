"""What stops or steers a run from outside: signals, files, the launcher; agreed upon by all ranks."""
