"""What is simulated: a pretrained decoder, described as ops that share its weights."""
