"""The auditor's side of the audit log. It imports nothing of the side that writes it."""
