//! Ports against the real tool, together with the room that uses them.

mod landing_oracle;
