"""Who else can run a plan? Writes Programs in the formats of other tools."""
