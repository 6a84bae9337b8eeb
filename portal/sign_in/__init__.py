"""What a request says about the person who signs in: address, browser, device, and failed attempts."""
