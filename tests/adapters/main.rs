//! Adapters against the real tools, together with the actors that use them.

mod landing_oracle;
