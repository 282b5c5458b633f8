"""Release: labs without their answers, made from solutions/."""
