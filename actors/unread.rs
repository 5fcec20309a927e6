//! Places on disk that could not be read and are read again.

use std::collections::BTreeMap;
use std::time::Duration;

use swarm_ports::Unread;

/// Pause before another try to read what could not be read.
pub const READ_PAUSE: Duration = Duration::from_secs(5);

/// Places that could not be read, each with the cause.
#[derive(Clone, Debug, Default)]
pub struct UnreadPlaces {
    places: BTreeMap<String, String>,
}

impl UnreadPlaces {
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the place with its cause, if it is among them.
    pub fn get(&self, place: &str) -> Option<Unread> {
        self.places.get(place).map(|cause| Unread { place: place.to_owned(), cause: cause.clone() })
    }

    pub fn all(&self) -> Vec<Unread> {
        self.places.keys().filter_map(|place| self.get(place)).collect()
    }

    pub fn remove(&mut self, place: &str) {
        self.places.remove(place);
    }

    /// Replaces all places. Returns those that are to be logged: each once, and again for another cause.
    pub fn replace(&mut self, unread: Vec<Unread>) -> Vec<Unread> {
        let before = std::mem::take(&mut self.places);
        self.places = unread.iter().map(|one| (one.place.clone(), one.cause.clone())).collect();
        unread.into_iter().filter(|one| before.get(&one.place) != Some(&one.cause)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_logged_once_for_each_cause() {
        let unread = |places: &[(&str, &str)]| -> Vec<Unread> {
            places.iter().map(|(place, cause)| Unread { place: (*place).into(), cause: (*cause).into() }).collect()
        };
        let mut places = UnreadPlaces::default();
        assert_eq!(places.replace(unread(&[("a", "x"), ("b", "x")])).len(), 2);
        assert_eq!(places.replace(unread(&[("a", "x"), ("b", "y")])), unread(&[("b", "y")]));
        assert_eq!((places.replace(Vec::new()), places.is_empty()), (Vec::new(), true));
        assert_eq!(places.replace(unread(&[("a", "x")])).len(), 1, "it was readable in between");
    }
}
