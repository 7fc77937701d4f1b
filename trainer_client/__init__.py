"""The trainer: samples token ids, learns by GRPO, and speaks to the gym over gRPC alone."""
