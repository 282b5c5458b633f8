"""What runs next to a submission: worker, jail and the wire to the judge. No verdict is formed here."""
