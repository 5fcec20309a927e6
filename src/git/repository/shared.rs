//! Permissions of the objects that libgit2 writes. It knows no `core.sharedRepository`, and the umask of the supervisor
//! lets nobody else read what it writes.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use git2::{ObjectType, Odb, Oid, Repository};
use swarm_sys::files;

/// Mode of a single object that everybody can read.
const OBJECT: u32 = 0o444;

/// Writes an object. Whoever can read the directory of all objects can read it.
pub(crate) fn write(repo: &Repository, odb: &Odb<'_>, kind: ObjectType, data: &[u8]) -> Result<Oid, git2::Error> {
    let objects = repo.commondir().join("objects");
    let name = Oid::hash_object(kind, data)?.to_string();
    let dir = objects.join(&name[..2]);
    // If this fails, libgit2 makes the directory.
    let _ = make_like(&objects, &dir);
    let id = odb.write(kind, data)?;
    // An object in a pack, or of another user, has no such file, or one that stays as it is.
    let _ = open_up(&dir, &dir.join(&name[2..]));
    Ok(id)
}

/// Makes a directory with the permissions of the one above it, unless something is there.
fn make_like(above: &Path, dir: &Path) -> io::Result<()> {
    let mode = fs::metadata(above)?.permissions().mode() & 0o7777;
    DirBuilder::new().mode(mode).create(dir)?;
    // The umask took some of them.
    fs::set_permissions(dir, Permissions::from_mode(mode))
}

/// Lets everybody read an object who can read its directory.
fn open_up(dir: &Path, object: &Path) -> io::Result<()> {
    let wanted = OBJECT & fs::metadata(dir)?.permissions().mode();
    let file = files::open_regular(OpenOptions::new().read(true), object)?;
    if file.metadata()?.permissions().mode() & 0o777 == wanted {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn objects_of_libgit2_have_the_permissions_of_their_repository() {
        let fix = Fixture::new();
        let objects = fix.repo.join(".git/objects");
        let repo = Repository::open(&fix.repo).expect("open");
        let odb = repo.odb().expect("open");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        for (number, (of_objects, of_object)) in
            [(0o2775, 0o444), (0o700, 0o400), (0o750, 0o440)].into_iter().enumerate()
        {
            fs::set_permissions(&objects, Permissions::from_mode(of_objects)).expect("set");
            let id = write(&repo, &odb, ObjectType::Blob, format!("object {number}").as_bytes()).expect("written");
            let id = id.to_string();
            let dir = objects.join(&id[..2]);
            assert_eq!((mode(&dir), mode(&dir.join(&id[2..]))), (of_objects, of_object));
        }
        fix.git(&["fsck", "--strict"]);
    }
}
