"""An answer beside plain decoding's: the levels of losslessness, loops, and a plain session to compare with."""
