"""Output for users: IR levels, explanations, drawings, dumps. No lower layer imports this package."""
