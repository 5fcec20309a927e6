//! Checked access to JSON that another program may have written. A member that is missing, or has another type than the
//! one that is asked for, reads as absent; nothing here fails or panics.

use serde_json::{Map, Value};

/// Access to the members of a JSON value, also of one that may be absent or no object.
pub trait Members<'a>: Sized {
    /// Returns the member with this key. `None` if there is none, or if the value is no object.
    fn member(self, key: &str) -> Option<&'a Value>;

    /// Returns a member that is a text.
    fn text(self, key: &str) -> Option<&'a str> {
        self.member(key)?.as_str()
    }

    /// Returns a member that is an integer and not negative.
    fn whole(self, key: &str) -> Option<u64> {
        self.member(key)?.as_u64()
    }

    /// Returns the items of a member that is a list. Empty if it is absent or no list.
    fn list(self, key: &str) -> &'a [Value] {
        self.member(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }
}

impl<'a> Members<'a> for &'a Value {
    fn member(self, key: &str) -> Option<&'a Value> {
        self.get(key)
    }
}

impl<'a> Members<'a> for Option<&'a Value> {
    fn member(self, key: &str) -> Option<&'a Value> {
        self?.get(key)
    }
}

impl<'a> Members<'a> for &'a Map<String, Value> {
    fn member(self, key: &str) -> Option<&'a Value> {
        self.get(key)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_member_of_the_wrong_type_is_absent() {
        let value = json!({"text": "a", "whole": 7, "list": [1], "below": {"text": "b"}});
        assert_eq!(
            (value.text("text"), value.whole("whole"), value.list("list")),
            (Some("a"), Some(7), &[json!(1)][..])
        );
        assert_eq!(value.member("below").text("text"), Some("b"));
        for key in ["text", "whole", "list", "below", "none"] {
            assert_eq!(value.text(key).is_some(), key == "text", "{key}");
            assert_eq!(value.whole(key).is_some(), key == "whole", "{key}");
            assert_eq!(!value.list(key).is_empty(), key == "list", "{key}");
            assert_eq!(value.member(key).member("text").is_some(), key == "below", "{key}");
        }
        for value in [json!(null), json!([{"text": "a"}]), json!("text"), json!(1)] {
            assert_eq!((value.member("text"), (&value).list("text")), (None, &[][..]), "{value}");
        }
        assert_eq!(json!({"whole": -1}).whole("whole"), None);
    }
}
