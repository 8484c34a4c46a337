"""EAGLE-3 drafters to 64K tokens: rotary tables, network, checkpoint layouts, known heads, training."""
