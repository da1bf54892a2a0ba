package main

type (
	completionCmd struct{}
	demoCmd       struct{}
	demoWriterCmd struct{}
)
