"""What the fleet's hardware is used for, and what a request costs of it. Pure: values and times in, values out."""
