"""Proposers that run a network: EAGLE-3 trees and the policies that prune them."""
