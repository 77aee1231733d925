"""Files of models as front ends."""
