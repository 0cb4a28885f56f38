"""What runs a federation on real machines: certificates, Flower's processes and who keeps them alive, the gateway."""
