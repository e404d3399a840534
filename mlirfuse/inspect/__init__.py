"""What people look at: levels, explanations, drawings, dumps. Nothing below imports it."""
