"""Between the plain types of `messages` and protobuf: the only code that sees both.

`control` carries what the manager and processors say, `data` what flows between processors, `admin`
what people's programs ask.
Reading validates every field; a forged message is refused with an error that names the field.
"""
