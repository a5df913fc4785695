//! Where a process ran, as it is written and read.

use serde::{Deserialize, Serialize};

use memprof_sys::process::Container;

/// Its control group, and its container and pod as far as the names of groups say.
#[derive(Serialize, Deserialize)]
pub struct Place {
    cgroup: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
}

impl From<&Container> for Place {
    fn from(container: &Container) -> Place {
        Place {
            cgroup: container.group.clone(),
            container: container.id.clone(),
            pod: container.pod.clone(),
        }
    }
}

impl From<Place> for Container {
    fn from(place: Place) -> Container {
        Container {
            group: place.cgroup,
            id: place.container,
            pod: place.pod,
        }
    }
}
