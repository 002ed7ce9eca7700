"""What people look at: charts now, the report and the claims later."""
