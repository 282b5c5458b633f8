"""What runs beside a submission: worker, jail and the wire to the judge. Nothing here decides."""
