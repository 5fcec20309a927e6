//! The screen of `swarm top`, without a terminal: which worker is selected, what is filtered, marked and asked, and what a
//! key does. `keys` has the one table of keys, `row` the facts that are shown, `layout` where they are, and `machine`
//! decides. Who draws it, and who carries out the effects, is outside of this crate.

mod edit;
mod keys;
mod layout;
mod machine;
mod mode;
mod reading;
mod row;

pub use edit::Edit;
pub use keys::{Action, Binding, Group, Key, TABLE, action_of, shown};
pub use layout::{Area, Layout};
pub use machine::{Effect, Event, Machine, Message, STILL_MS, Want, What};
pub use mode::{Mode, Planned, Question, Request, Target, Typing};
pub use reading::Reading;
pub use row::{Answer, Branch, Class, Id, Kind, List, Row, Show, Sort, Subject, View};
