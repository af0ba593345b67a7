"""Is this machine, or this job, fit to train? Checks that each say what they found and what to mend."""
