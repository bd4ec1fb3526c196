"""What a hybrid prefix is made of."""
