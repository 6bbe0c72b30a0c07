"""What moves save and cost: latencies, overlap, persistence of heat, and the moves that pay."""
