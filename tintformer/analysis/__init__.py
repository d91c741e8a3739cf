"""What is known about a pass: verification, theorems, accounting, planning, what stands where."""
