"""Contains the program that runs on GPU hosts.

The program installs and runs without the server. The server imports only the module ``protocol`` of this
package.
"""

AGENT_VERSION = "0.1.0"
