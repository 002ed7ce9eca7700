"""What people look at: charts, figures of the two papers, and the report."""
