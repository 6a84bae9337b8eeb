"""What every page shares: sign-in, the frame around it, live refresh, forms that call a service, CSV downloads."""
