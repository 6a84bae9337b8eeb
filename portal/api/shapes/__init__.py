"""What the API takes and gives, by subject. Services check the values; these check the shape and describe it in the schema."""
