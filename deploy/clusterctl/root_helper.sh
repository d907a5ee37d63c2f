#!/bin/sh
# Services of launchd for one installation of Studiofleet, by these verbs and no others. One user, who is
# not root, may run this as root by sudo, without a password. So it takes arguments of fixed forms only,
# opens no file that this user could have put in its way, and lets launchd start nothing as anybody else.
#
#   check LABEL <LIST     whether this property list would be installed; changes nothing, needs no root
#   install LABEL <LIST   check it, and put it where launchd finds it at boot
#   bootstrap LABEL       have launchd load it, which starts it
#   bootout LABEL         have launchd end it and let go of it
#   kickstart LABEL       start one that has ended; never one that runs
#   terminate LABEL       SIGTERM
#   hangup LABEL          SIGHUP
#   print LABEL           what launchd says of it; needs no root
#   show LABEL            its property list; needs no root
#   list                  the labels whose property lists are there; needs no root
#   remove LABEL          remove its property list
#   uninstall             end and remove all of them, the line for sudo, and this program
#
# It ends with the exit code of launchctl, or with: 64 not a verb or a label of ours, 65 not a property list
# of ours, 66 nothing is there, 73 the folder cannot be written to, 77 not root.

#CONSTANTS#

set -u
umask 022
LC_ALL=C
export PATH LC_ALL
unset ENV BASH_ENV CDPATH
IFS=' 	
'

refuse() {  # CODE WORDS
    printf 'refused: %s\n' "$2" >&2
    exit "$1"
}

need_root() {
    [ "$(id -u)" = 0 ] || refuse 77 'only root may do that'
}

need_label() {
    case $label in
        *[!A-Za-z0-9._-]*) refuse 64 'that is not one of our labels' ;;
        "$name".gateway.[A-Za-z0-9]* | "$name".worker.[A-Za-z0-9]*) ;;
        *) refuse 64 'that is not one of our labels' ;;
    esac
    [ "${#label}" -le 120 ] || refuse 64 'that label is too long'
    file=$daemons/$label.plist
}

take_list() {  # into the file $new; refuses what is not exactly of the form that Studiofleet writes
    head -c 65536 >"$new" || refuse 73 'it cannot be written'
    [ "$(wc -c <"$new")" -lt 65536 ] || refuse 65 'the property list is too long'
    [ "$(tr -d '\011\012\040-\176' <"$new" | wc -c)" -eq 0 ] || refuse 65 'it has other characters than ASCII'
    why=$(label=$label user=$user home=$home programs=$programs awk "$form" "$new") || refuse 65 "$why"
    plutil -lint -s "$new" >/dev/null || refuse 65 'plutil does not take it'
}

# A property list can say one thing in many ways, and whoever checks it may read it otherwise than launchd. So
# this reads no property lists: it knows the few lines of which ours consist, and takes no others.
form='
function no(why) { print why; failed = 1; exit 1 }
function text(tabs,   head, value) {
    head = tabs "<string>"
    if (length($0) < length(head) + 9 || substr($0, 1, length(head)) != head) no("line " NR " is not of our form")
    if (substr($0, length($0) - 8) != "</string>") no("line " NR " is not of our form")
    value = substr($0, length(head) + 1, length($0) - length(head) - 9)
    if (value ~ /[<>&]/) no("line " NR " has markup in its text")
    return value
}
function must(line) { if ($0 != line) no("line " NR " is not of our form") }
function within(path, folder) {
    if (path ~ /\/\// || path ~ /\/\.\.?(\/|$)/) return 0
    return substr(path, 1, length(folder) + 1) == folder "/" && length(path) > length(folder) + 1
}
function between(key, least, most) {
    if (value[key] < least || value[key] > most) no(key " has to be from " least " to " most)
}
BEGIN {
    head[1] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>"
    head[2] = "<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\""
    head[2] = head[2] " \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">"
    head[3] = "<plist version=\"1.0\">"
    head[4] = "<dict>"
    many = split("Label UserName WorkingDirectory StandardOutPath StandardErrorPath ProcessType", names, " ")
    for (i = 1; i <= many; i++) kind[names[i]] = "string"
    many = split("ExitTimeOut ThrottleInterval Umask", names, " ")
    for (i = 1; i <= many; i++) kind[names[i]] = "integer"
    kind["ProgramArguments"] = "array"
    kind["EnvironmentVariables"] = "variables"
    kind["KeepAlive"] = "keep"
    kind["RunAtLoad"] = "true"
    many = split("HOME LANG PATH PYTHONPATH STUDIOFLEET_HOME STUDIOFLEET_MODELS STUDIOFLEET_SUPERVISOR", names, " ")
    for (i = 1; i <= many; i++) variable[names[i]] = 1
    tab = "\t"
}
NR <= 4 { must(head[NR]); want = "key"; next }
want == "key" && $0 == "</dict>" { want = "foot"; next }
want == "key" {
    if ($0 !~ /^\t<key>[A-Za-z]+<\/key>$/) no("line " NR " is not of our form")
    key = substr($0, 7, length($0) - 12)
    if (!(key in kind)) no("the key " key " is not allowed")
    if (key in seen) no("the key " key " is there twice")
    seen[key] = 1
    want = kind[key]
    next
}
want == "string" { value[key] = text(tab); want = "key"; next }
want == "integer" {
    if ($0 !~ /^\t<integer>[0-9]+<\/integer>$/ || length($0) > 24) no(key " is no number")
    value[key] = substr($0, 11, length($0) - 20) + 0
    want = "key"
    next
}
want == "true" { must(tab "<true/>"); want = "key"; next }
want == "array" { must(tab "<array>"); want = "program"; next }
want == "program" { value[key] = text(tab tab); want = "argument"; next }
want == "argument" && $0 == tab "</array>" { want = "key"; next }
want == "argument" { text(tab tab); next }
want == "keep" { must(tab "<dict>"); want = "success"; next }
want == "success" { must(tab tab "<key>SuccessfulExit</key>"); want = "false"; next }
want == "false" { must(tab tab "<false/>"); want = "kept"; next }
want == "kept" { must(tab "</dict>"); want = "key"; next }
want == "variables" { must(tab "<dict>"); want = "variable"; next }
want == "variable" && $0 == tab "</dict>" { want = "key"; next }
want == "variable" {
    if ($0 !~ /^\t\t<key>[A-Z_]+<\/key>$/) no("line " NR " is not of our form")
    known = substr($0, 8, length($0) - 13)
    if (!(known in variable)) no("the variable " known " is not allowed")
    if (known in given) no("the variable " known " is there twice")
    given[known] = 1
    want = "setting"
    next
}
want == "setting" { text(tab tab); want = "variable"; next }
want == "foot" { must("</plist>"); want = "end"; next }
{ no("there is more behind its end") }
END {
    if (failed) exit 1
    if (want != "end") no("its end is missing")
    for (key in kind) if (!(key in seen)) no("the key " key " is missing")
    if (value["Label"] != ENVIRON["label"]) no("it has another label")
    if (value["UserName"] != ENVIRON["user"]) no("it is for another user than " ENVIRON["user"])
    if (!within(value["ProgramArguments"], ENVIRON["programs"])) no("its program is not in " ENVIRON["programs"])
    if (value["WorkingDirectory"] != ENVIRON["home"] && !within(value["WorkingDirectory"], ENVIRON["home"]))
        no("its folder is not in " ENVIRON["home"])
    if (!within(value["StandardOutPath"], ENVIRON["home"])) no("its log is not in " ENVIRON["home"])
    if (value["StandardErrorPath"] != value["StandardOutPath"]) no("it has two logs")
    if (value["ProcessType"] != "Interactive") no("its process type is not Interactive")
    if (value["Umask"] != 23 && value["Umask"] != 63) no("its umask is neither 23 nor 63")
    between("ExitTimeOut", 1, 300)
    between("ThrottleInterval", 1, 3600)
}
'

install_list() {
    user_id=$(id -u "$user") && [ "$user_id" -ne 0 ] || refuse 65 "$user is nobody, or root"
    new=$(mktemp "$daemons/.$label.XXXXXX") || refuse 73 "$daemons cannot be written to"
    trap 'rm -f "$new"' EXIT
    take_list
    chown 0:0 "$new" && chmod 0644 "$new" && mv -f "$new" "$file" || refuse 73 "$daemons cannot be written to"
}

remove_list() {
    rm -f "$file" || refuse 73 "$daemons cannot be written to"
    launchctl enable "system/$label" # a disable of old would outlive the file, and meet the next of that name
}

uninstall() {
    for file in "$daemons/$name".*.plist; do
        [ -e "$file" ] || continue
        label=${file##*/}
        label=${label%.plist}
        launchctl bootout "system/$label"
        remove_list
    done
    rm -f "$daemons/.$name".* "$sudoers" "$helper"
}

main() {
    verb=${1-}
    label=${2-}
    case $verb in
        list | uninstall) [ $# -eq 1 ] || refuse 64 "$verb takes no label" ;;
        check | print | show | install | bootstrap | bootout | kickstart | terminate | hangup | remove)
            [ $# -eq 2 ] || refuse 64 "$verb takes one label"
            need_label
            ;;
        *) refuse 64 'that is not one of my verbs' ;;
    esac
    case $verb in
        check | print | show | list) ;;
        *) need_root ;;
    esac
    case $verb in
        check)
            new=$(mktemp /tmp/studiofleet.XXXXXX) || refuse 73 '/tmp cannot be written to'
            trap 'rm -f "$new"' EXIT
            take_list
            ;;
        install) install_list ;;
        bootstrap)
            [ -f "$file" ] || refuse 66 "there is no $file"
            launchctl enable "system/$label"
            launchctl bootstrap system "$file"
            ;;
        bootout) launchctl bootout "system/$label" ;;
        kickstart) launchctl kickstart "system/$label" ;;
        terminate) launchctl kill SIGTERM "system/$label" ;;
        hangup) launchctl kill SIGHUP "system/$label" ;;
        print) launchctl print "system/$label" ;;
        show)
            [ -f "$file" ] || refuse 66 "there is no $file"
            cat "$file"
            ;;
        list)
            for file in "$daemons/$name".*.plist; do
                [ -f "$file" ] || continue
                label=${file##*/}
                printf '%s\n' "${label%.plist}"
            done
            ;;
        remove) remove_list ;;
        uninstall) uninstall ;;
    esac
}

main "$@"
