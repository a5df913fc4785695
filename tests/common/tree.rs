//! The reply of `/v1/tree`, and sums over it.

use serde::Deserialize;

/// A node; sizes in KiB.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub name: Option<Name>,
    pub value: u64,
    pub cache_value: u64,
    #[serde(default)]
    pub frames: Vec<Node>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Name {
    /// `unknown` or `underThreshold`.
    Pseudo(String),
    #[serde(rename_all = "camelCase")]
    Frame {
        executable: String,
        function_name: Option<String>,
    },
}

/// The sum of some nodes in KiB: all memory including page cache, and page cache alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub value: u64,
    pub cache: u64,
}

impl Sum {
    fn add(&mut self, node: &Node) {
        self.value += node.value;
        self.cache += node.cache_value;
    }
}

impl Node {
    pub fn parse(body: &[u8]) -> Node {
        let root: Node = serde_json::from_slice(body).unwrap();
        root.check();
        root
    }

    /// Checks the invariants of every node of a reply with threshold 0.
    fn check(&self) {
        assert!(self.value >= self.cache_value, "{:?}", self.name);
        let below: u64 = self.frames.iter().map(|n| n.value).sum();
        assert!(
            self.frames.is_empty() || below == self.value,
            "{:?}: {} KiB, below it {below}",
            self.name,
            self.value
        );
        self.frames.iter().for_each(Node::check);
    }

    /// Anonymous and shared memory.
    pub fn resident(&self) -> u64 {
        self.value - self.cache_value
    }

    pub fn function(&self) -> Option<&str> {
        match &self.name {
            Some(Name::Frame { function_name, .. }) => function_name.as_deref(),
            _ => None,
        }
    }

    /// For the root: memory without a function.
    pub fn unknown(&self) -> u64 {
        let is_unknown = |n: &&Node| matches!(&n.name, Some(Name::Pseudo(p)) if p == "unknown");
        self.frames
            .iter()
            .filter(is_unknown)
            .map(Node::resident)
            .sum()
    }

    /// The sum of all stacks that contain the function, in either direction. The function must not recurse.
    pub fn through(&self, function: &str) -> Sum {
        let mut sum = Sum::default();
        self.each(&mut |node| {
            let here = node.function() == Some(function);
            if here {
                sum.add(node);
            }
            !here
        });
        sum
    }

    fn each(&self, visit: &mut impl FnMut(&Node) -> bool) {
        if visit(self) {
            self.frames.iter().for_each(|node| node.each(visit));
        }
    }

    /// The sum of the nodes at this path of functions below this node: each step includes all call sites of
    /// the function.
    pub fn at(&self, path: &[&str]) -> Sum {
        let mut sum = Sum::default();
        match path {
            [] => sum.add(self),
            [first, rest @ ..] => {
                for node in self.frames.iter().filter(|n| n.function() == Some(first)) {
                    let below = node.at(rest);
                    sum.value += below.value;
                    sum.cache += below.cache;
                }
            }
        }
        sum
    }

    /// Fails the test unless the nodes at this path hold so many bytes.
    #[track_caller]
    pub fn must_hold(&self, path: &[&str], bytes: u64) {
        assert_eq!(self.at(path).value * 1024, bytes, "{}", self.text());
    }

    /// Self memory of the path's last function. Like [`Node::at`], but starts at every node of the path's
    /// first function, and excludes descendants.
    pub fn own_after(&self, path: &[&str]) -> u64 {
        let Some((first, rest)) = path.split_first() else {
            return self.own();
        };
        let mut sum = 0;
        self.each(&mut |node| {
            let here = node.function() == Some(first);
            if here {
                sum += node.own_at(rest);
            }
            !here
        });
        sum
    }

    fn own_at(&self, path: &[&str]) -> u64 {
        match path {
            [] => self.own(),
            [first, rest @ ..] => {
                let found = self.frames.iter().filter(|n| n.function() == Some(first));
                found.map(|n| n.own_at(rest)).sum()
            }
        }
    }

    fn own(&self) -> u64 {
        let real = self.frames.iter().filter(|n| n.function().is_some());
        self.value - real.map(|n| n.value).sum::<u64>()
    }

    /// The tree as text, for failure messages.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(0, &mut out);
        out
    }

    fn write(&self, depth: usize, out: &mut String) {
        let name = match &self.name {
            None => "root".to_owned(),
            Some(Name::Pseudo(name)) => format!("[{name}]"),
            Some(Name::Frame {
                executable,
                function_name,
            }) => format!("{} ({executable})", function_name.as_deref().unwrap_or("?")),
        };
        let (value, cache) = (self.value, self.cache_value);
        *out += &format!("{value:>8} {cache:>8} {:1$}{name}\n", "", depth);
        self.frames.iter().for_each(|n| n.write(depth + 1, out));
    }
}
