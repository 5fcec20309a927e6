//! Examples of the verb that serves a browser.

pub const WEB: &str = "\
Examples:
  swarm web --open
  swarm web --allow act,answer
  swarm web --bind 127.0.0.1:8080                   then elsewhere: ssh -N -L 8080:127.0.0.1:8080 box
  swarm web --socket ~/swarm.sock                   then elsewhere: ssh -N -L 8080:/home/me/swarm.sock box

Prints the address of the page. It is a secret, and can be used once: whoever opens
it first sees the fleet, and can do what --allow says. Enter prints another one.
--allow act sends text and keys, stops, respawns and lands work; --allow answer
answers what agents ask of people. Nothing forces, removes or consents. Processes
below a worker can do none of this. Looking starts no supervisor. It ends with
Ctrl-C, SIGTERM, or its terminal.";
