"""The version of this package."""

VERSION = "0.2.0"
