"""What a run sends to TensorBoard, MLflow and Weights & Biases; each is an extra."""
