"""What a researcher imports."""
